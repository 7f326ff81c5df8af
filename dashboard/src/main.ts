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
import { Page } from "./ui/page";
import { applyTheme } from "./ui/theme";

applyTheme();
new Page(document.body).open();
