import "@fontsource-variable/geist/wght.css";
import "@fontsource-variable/geist-mono/wght.css";
import "./style/palette.css";
import "./style/page.css";
import "./style/tiers.css";
import "./style/intake.css";
import "./style/step-times.css";
import "./style/event-times.css";
import "./style/card.css";
import "./style/charts.css";
import "./style/connections.css";
import "./style/login.css";
import { enter } from "./access/entrance";
import { applyTheme } from "./ui/theme";

applyTheme();
void enter(document.body);
