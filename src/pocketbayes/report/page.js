// Draws every figure; their colours are CSS variables, so that a change of theme needs no redrawing.
const root = document.documentElement;
const system = matchMedia("(prefers-color-scheme: dark)");
const { config, figures } = JSON.parse(document.getElementById("figures").textContent);
// `ast` has Vega interpret its expressions: the policy of the page forbids eval.
const options = { ast: true, actions: false, config, mode: "vega-lite", renderer: "svg", tooltip: { theme: "page" } };
for (const [name, figure] of Object.entries(figures)) {
  vegaEmbed(`#plot-${name}`, figure, options);
}

const button = document.getElementById("theme");
const dark = () => (root.dataset.theme || (system.matches ? "dark" : "light")) === "dark";
const name = () => { button.textContent = dark() ? "Light" : "Dark"; };
button.hidden = false;
button.addEventListener("click", () => {
  root.dataset.theme = dark() ? "light" : "dark";
  name();
});
system.addEventListener("change", name);
name();
