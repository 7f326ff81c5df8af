// A stand-in for `serve` with a made-up Meetup, for work on the dashboard without Kafka and Spark:
//   npm run build && npm run fake-server         → http://127.0.0.1:8500
// Environment: PORT, RATE (events a second), DOWN (a tier), BROKEN (why the journal accepts nothing), REBUILD=1 (rebuilds, late
// events, drift), EMPTY=1 (no rows), HOSTILE=1 (markup in texts), LOGIN=secret (wants that key; `secret-reader` lacks the right admin), STREAMS (number of further streams; some are slow, some have no senders).
import { createServer } from "node:http";
import { readFile } from "node:fs/promises";
import { extname, join, normalize } from "node:path";
import { WebSocketServer } from "ws";

const port = Number(process.env.PORT ?? 8500);
const rate = Number(process.env.RATE ?? 30);
const down = process.env.DOWN ?? "";
const broken = process.env.BROKEN ?? "";
const empty = process.env.EMPTY === "1";
const rebuilding = process.env.REBUILD === "1";
const login = process.env.LOGIN ?? "";
const root = new URL("../../src/millstream/serve/static/", import.meta.url).pathname;

const cities = [
  ["New York", "us", 40.71, -74.01], ["London", "gb", 51.51, -0.13], ["San Francisco", "us", 37.77, -122.42],
  ["Berlin", "de", 52.52, 13.4], ["Toronto", "ca", 43.65, -79.38], ["Bengaluru", "in", 12.97, 77.59],
  ["Sydney", "au", -33.87, 151.21], ["Paris", "fr", 48.86, 2.35], ["Tokyo", "jp", 35.68, 139.69],
  ["São Paulo", "br", -23.55, -46.63], ["Amsterdam", "nl", 52.37, 4.9], ["Chicago", "us", 41.88, -87.63],
  ["Austin", "us", 30.27, -97.74], ["Madrid", "es", 40.42, -3.7], ["Singapore", "sg", 1.35, 103.82],
  ["Lagos", "ng", 6.52, 3.38], ["Nairobi", "ke", -1.29, 36.82], ["Mexico City", "mx", 19.43, -99.13],
  ["Zürich", "ch", 47.37, 8.54], ["Warsaw", "pl", 52.23, 21.01], ["Cape Town", "za", -33.92, 18.42],
  ["Buenos Aires", "ar", -34.6, -58.38], ["Dubai", "ae", 25.2, 55.27], ["Seoul", "kr", 37.57, 126.98],
  ["Auckland", "nz", -36.85, 174.76], ["Stockholm", "se", 59.33, 18.07], ["Seattle", "us", 47.61, -122.33],
];
const topics = [
  "Outdoors", "New Technology", "Hiking", "Social Networking", "Software Development", "Photography",
  "Board Games", "Startup Businesses", "Language Exchange", "Yoga", "Book Club", "Machine Learning",
  "Live Music", "Open Source", "Running", "Meditation", "Wine Tasting", "Data Science", "Travel", "Film",
];
const people = ["Ana", "Ben", "Chidi", "Dana", "Emre", "Fatima", "Goran", "Hana", "Ivan", "Jun", "Kemi", "Lars", "Mei", "Noor", "Oskar"];
const zipf = (list, s = 0.85) => {
  const weights = list.map((_, index) => 1 / (index + 1) ** s);
  let left = Math.random() * weights.reduce((a, b) => a + b);
  return list[weights.findIndex((weight) => (left -= weight) <= 0)] ?? list[0];
};
const stamp = (at) => new Date(at).toISOString().replace("Z", "000Z");
const WINDOW = { name: "window", type: "struct<start:timestamp,end:timestamp>" };
const column = (name, type) => ({ name, type });
const STATE = column("_state", "string");
const describe = (name, key, columns, extra = {}) => ({
  name, key, columns, topic: `meetup.view.${name}`, inputs: ["rsvps"], window: null, keep_ms: null, mode: "real_time",
  reason: "every operator of this plan runs in Spark's real-time mode", guarantee: "each event counted once",
  lineage: "revision", description: "", ...extra,
});
const views = [
  describe("trending_topics", ["window", "topic"], [WINDOW, column("topic", "string"), column("rsvps", "bigint"), STATE], { window: "window" }),
  describe("rsvps_per_minute", ["window"], [WINDOW, column("rsvps", "bigint"), column("guests", "bigint"), STATE], { window: "window" }),
  describe("by_country", ["country"], [column("country", "string"), column("rsvps", "bigint"), column("guests", "bigint")]),
  describe("by_city", ["country", "city"], [column("country", "string"), column("city", "string"), column("rsvps", "bigint"), column("lat", "double"), column("lon", "double")],
    { mode: "micro_batch", reason: "avg over distinct members is not supported in real-time mode" }),
  describe("newest_rsvps", null, [column("rsvp_id", "bigint"), column("member", "string"), column("city", "string"), column("country", "string"), column("topic", "string"),
    column("response", "string"), column("guests", "int"), column("lat", "double"), column("lon", "double"), column("mtime", "timestamp")], { lineage: "position" }),
];
const tables = new Map(views.map((view) => [view.name, { rows: new Map(), offset: 0, changes: [], log: [] }]));
const sockets = new Set();
let total = 0;
let changes = 0;

const position = (table) => `e1:0=${table.offset}`;

function put(name, keyColumns, row) {
  const table = tables.get(name);
  const key = keyColumns === null ? null : keyColumns.map((each) => row[each]);
  table.offset += 1;
  changes += 1;
  table.rows.set(key === null ? `#${table.offset}` : JSON.stringify(key), { key, row });
  if (key === null && table.rows.size > 100) table.rows.delete(table.rows.keys().next().value);
  const change = { type: "change", op: "upsert", key, row, position: position(table) };
  table.log.push({ offset: table.offset, change });
  if (table.log.length > 5000) table.log.shift();
  for (const socket of sockets) socket.sendChange(name, change);
}

function bump(name, keyColumns, row, add) {
  const held = tables.get(name).rows.get(JSON.stringify(keyColumns.map((each) => row[each])))?.row ?? {};
  const sums = Object.fromEntries(Object.entries(add).map(([each, value]) => [each, (held[each] ?? 0) + value]));
  put(name, keyColumns, { ...row, ...sums });
}

const windowAt = (at, length, slide = length) => {
  const newest = Math.floor(at / slide) * slide;
  return Array.from({ length: length / slide }, (_, index) => newest - index * slide).map((start) => ({ start: stamp(start), end: stamp(start + length) }));
};

const stateOf = (at, length) => (at + length > Date.now() ? "provisional" : at % (3 * length) < length ? "corrected" : "final");

function event(at) {
  total += 1;
  const [city, country, lat, lon] = zipf(cities);
  const guests = Math.random() < 0.2 ? 1 + Math.floor(Math.random() * 3) : 0;
  const hostile = process.env.HOSTILE === "1" && Math.random() < 0.2;
  const topic = hostile ? "<img src=x onerror=alert(1)>" : zipf(topics, 0.6 + 0.3 * Math.sin(at / 60000));
  for (const window of windowAt(at, 3600_000, 300_000).slice(0, 12)) bump("trending_topics", ["window", "topic"], { window, topic, _state: "provisional" }, { rsvps: 1 });
  bump("rsvps_per_minute", ["window"], { window: windowAt(at, 60_000)[0], _state: stateOf(at, 60_000) }, { rsvps: 1, guests });
  bump("by_country", ["country"], { country }, { rsvps: 1, guests });
  bump("by_city", ["country", "city"], { country, city, lat, lon }, { rsvps: 1 });
  const jitter = () => (Math.random() - 0.5) * 2.4;
  put("newest_rsvps", null, {
    rsvp_id: 1_800_000_000 + total, member: zipf(people, 0.2), city, country, topic, response: Math.random() < 0.8 ? "yes" : "no",
    guests, lat: lat + jitter(), lon: lon + jitter(), mtime: stamp(at),
  });
}

if (!empty) {
  for (let back = 3000; back > 0; back--) event(Date.now() - back * 800 * (0.4 + 0.6 * Math.random()));
  let due = 0;
  setInterval(() => {
    if (down === "collect" || down === "analyze") return;
    due += (rate / 20) * (1 + 0.5 * Math.sin(Date.now() / 7000)) * (0.5 + Math.random());
    for (; due >= 1; due--) event(Date.now());
  }, 50);
}

const spread = (p50) => ({ p50: p50 * (0.9 + 0.2 * Math.random()), p99: p50 * (3.5 + Math.random()), max: p50 * 8, min: p50 / 3, mean: p50 * 1.2, count: 200 });
let measured = { at: Date.now(), total, changes, rate: 0, changeRate: 0 };
setInterval(() => {
  const seconds = (Date.now() - measured.at) / 1000;
  measured = { at: Date.now(), total, changes, rate: (total - measured.total) / seconds, changeRate: (changes - measured.changes) / seconds };
}, 1000);

const more = Array.from({ length: Number(process.env.STREAMS ?? 0) }, (_, index) => `stream_${index + 2}_of_${"many_".repeat(index % 5)}others`);

/** The step times of each stream: each is six times slower than the one before, every third has no events. */
function collected(name, index) {
  const took = (p50) => (empty || index % 3 === 2 ? null : spread(p50 * 6 ** index));
  const skew = index === 0 && !empty ? { skew_ms: spread(3_100), out_of_order: 48 } : {};
  return [name, { journaled_ms: took(0.8), sent_ms: took(0.9), latency_ms: took(4.1), ...skew }];
}

const began = Date.now();

/** A running rebuild, a finished one, a failed one, and views that are behind. */
function rebuilt(name) {
  const done = Math.min(180_000, Math.floor((Date.now() - began) * 3));
  const stages = {
    trending_topics: { rebuild: { state: "replaying", request: "r", done, total: 180_000, started_at: began, left_s: (180_000 - done) / 3_000 } },
    rsvps_per_minute: { behind: 1_204, behind_s: 3.1, trend: "shrinking", catch_up_s: 12 },
    by_country: { rebuild: { state: "done", request: "r", done: 90_000, total: 90_000, started_at: began - 60_000, ended_at: began } },
    by_city: { behind: 41_300, behind_s: 31.2, trend: "growing", rebuild: { state: "failed", error: "a rebuild needs 2 task slots besides 8 in use, but Spark has 8; add workers or cores" } },
  };
  return stages[name] ?? {};
}

function system() {
  const state = (tier) => (tier === down ? "down" : "up");
  const counts = (name) => ({ rate: measured.changeRate / views.length, analyze_ms: spread(9), rows: tables.get(name).rows.size });
  const all = Object.fromEntries(views.map((view) => [view.name, { state: "running", behind: 0, ...counts(view.name), ...(rebuilding ? rebuilt(view.name) : {}) }]));
  return {
    app: "meetup", version: "0.1.0", now: new Date().toISOString(),
    streams: [{ name: "rsvps", topic: "meetup.stream.rsvps", columns: [], key: "rsvp_id", delivery: "exactly_once", event_time: "mtime", watermark: stamp(Date.now() - 3_100), source: { kind: "websocket", url: "ws://127.0.0.1:8600/rsvps" } }, ...more.map((name) => ({ name, columns: [] }))],
    views: views.map((view) => ({ ...view, rows: tables.get(view.name).rows.size, position: position(tables.get(view.name)), watermark: stamp(Date.now() - 4_200) })),
    tiers: {
      collect: { state: state("collect"), instances: 1, rate: measured.rate, accepted: total + 15, logged: total, rejected: empty ? 0 : 12, pending: 3, unaccounted: 0,
        latency_ms: empty ? null : spread(4.1), journaled_ms: empty ? null : spread(0.8), sent_ms: empty ? null : spread(0.9),
        streams: Object.fromEntries(["rsvps", ...more].map(collected)),
        journal: { entries: 3, bytes: 1_800, stored_bytes: 41_000_000, max_bytes: 1_000_000_000, broken: broken },
        sources: [{ stream: "rsvps", kind: "websocket", url: "ws://127.0.0.1:8600/rsvps", rate: measured.rate, state: down === "collect" ? "retrying" : "connected" }] },
      log: { state: state("log"), rate: measured.rate },
      analyze: { state: state("analyze"), rate: measured.changeRate, latency_ms: empty ? null : spread(9.4), views: all,
        streams: { rsvps: { in_order: total, ...(rebuilding ? { late: 12, future: 1 } : {}) } },
        drifts: rebuilding ? [{ stream: "rsvps", field: "guests", at: Date.now() - 95_000, score: 0.41, before: "mostly 0 to 1", now: "mostly 2 to 4" }] : [] },
      serve: { state: "up", instances: 1, clients: sockets.size, rate: measured.changeRate, latency_ms: empty ? null : spread(1.3), views: all },
    },
    end_to_end_ms: empty ? null : spread(14),
  };
}

const tickets = new Map();

/** The key of a request: that of its header, or that of its ticket, which is spent then. */
function keyOf(request) {
  const ticket = new URL(request.url, "http://x").searchParams.get("ticket");
  const key = tickets.get(ticket) ?? request.headers.authorization?.replace("Bearer ", "");
  tickets.delete(ticket);
  return login === "" || [login, `${login}-reader`].includes(key) ? (key ?? "") : null;
}

const closed = new Set();
const connected = () => {
  const made = people.slice(0, 9).map((name, index) => ({
    id: `4f19c2-${index + 1}`, caller: index % 4 === 3 ? "" : `key ${name.toLowerCase()}`, address: `10.0.${index}.${17 * index + 4}`, transport: index % 3 === 2 ? "sse" : "websocket",
    since: new Date(began - index * 733_000).toISOString(), rate: measured.changeRate / (index + 1), bytes: Math.floor((Date.now() - began) * 900 * (index + 1) + 4_000_000 / (index + 1)),
    behind: index === 4 ? 1_204 : 0, skipped: index === 4 ? 310 : 0,
    subscriptions: [{ kind: "view", name: views[index % views.length].name, ...(index % 2 ? { where: "country = 'de' AND rsvps > 10" } : {}) }, ...(index === 1 ? [{ kind: "stream", name: "rsvps" }] : [])],
  }));
  return made.filter(({ id }) => !closed.has(id));
};

const TYPES = { ".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".woff2": "font/woff2", ".json": "application/json" };

const server = createServer(async (request, response) => {
  const { pathname } = new URL(request.url, "http://x");
  const json = (status, body) => response.writeHead(status, { "content-type": "application/json" }).end(JSON.stringify(body));
  const key = keyOf(request);
  if (pathname.startsWith("/v1/") && key === null) return json(401, { title: "Unauthorized", detail: "this API key is not known" });
  const isAdmin = !key?.endsWith("-reader");
  if (pathname === "/v1/tickets") {
    const ticket = Math.random().toString(36).slice(2);
    tickets.set(ticket, key);
    return json(200, { ticket, expires: new Date(Date.now() + 30_000).toISOString() });
  }
  if (pathname === "/v1/views") return json(200, { views: system().views });
  if ((pathname === "/v1/system" || pathname.startsWith("/v1/connections")) && !isAdmin) return json(403, { title: "Forbidden", detail: "this needs the right admin" });
  if (pathname === "/v1/system") return json(200, system());
  if (pathname === "/v1/connections") return json(200, { connections: connected() });
  if (pathname.startsWith("/v1/connections/")) {
    closed.add(pathname.slice("/v1/connections/".length));
    return json(200, {});
  }
  if (pathname === "/v1/query") {
    let body = "";
    for await (const chunk of request) body += chunk;
    const { sql } = JSON.parse(body);
    const view = views.find((each) => new RegExp(`\\b${each.name}\\b`).test(sql));
    if (view === undefined) return json(400, { title: "cannot run the query", detail: `no such view in: ${sql}` });
    const rows = [...tables.get(view.name).rows.values()].slice(0, 10).map(({ row }) => view.columns.map((each) => row[each.name]));
    return json(200, { columns: view.columns, rows, truncated: false, elapsed_ms: 3.2 });
  }
  const path = join(root, normalize(pathname === "/" ? "/index.html" : pathname));
  try {
    response.writeHead(200, { "content-type": TYPES[extname(path)] ?? "text/plain", "content-security-policy": "default-src 'self'" }).end(await readFile(path));
  } catch {
    json(404, { title: "not found" });
  }
});

new WebSocketServer({ server, path: "/v1/connect", verifyClient: ({ req }) => keyOf(req) !== null }).on("connection", (socket) => {
  const subscriptions = new Map();
  const send = (message) => socket.send(JSON.stringify(message));
  socket.sendChange = (name, change) => {
    for (const [id, { view, keep }] of subscriptions) if (view === name && keep(change.row)) send({ ...change, id });
  };
  sockets.add(socket);
  socket.on("close", () => sockets.delete(socket));
  socket.on("message", (data) => {
    const message = JSON.parse(String(data));
    if (message.type === "ping") return send({ type: "pong" });
    if (message.type === "unsubscribe") return subscriptions.delete(message.id);
    const { id, view, where = "", after } = message;
    const [, name, sign, text] = /^(\w+)\s*(=|>|<)\s*'?([^']*)'?$/.exec(where) ?? [];
    if (where !== "" && !views.find((each) => each.name === view)?.columns.some((each) => each.name === name)) {
      return send({ type: "error", id, title: "bad filter", detail: `no column of ${view} in: ${where}` });
    }
    const keep = where === "" ? () => true : (row) => (sign === "=" ? String(row[name]) === text : sign === ">" ? row[name] > Number(text) : row[name] < Number(text));
    const table = tables.get(view);
    subscriptions.set(id, { view, keep });
    const from = after === undefined ? null : Number(after.split("=")[1]);
    if (from !== null && after.startsWith("e1:") && from <= table.offset && (table.log[0]?.offset ?? Infinity) <= from + 1) {
      for (const { offset, change } of table.log) if (offset > from && keep(change.row)) send({ ...change, id });
      return undefined;
    }
    if (after !== undefined) send({ type: "gap", id, asked: after, position: position(table), reason: "no longer held" });
    return send({ type: "snapshot", id, view, position: position(table), rows: [...table.rows.values()].filter(({ row }) => keep(row)) });
  });
});
server.listen(port, "127.0.0.1", () => console.log(`fake server on http://127.0.0.1:${port}`));
