"use strict";
// Draws every figure in the colours of the theme, and again when the theme changes.
(() => {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const touch = matchMedia("(pointer: coarse)").matches;
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const buttons = ["zoom2d", "pan2d", "resetScale2d", "toImage"];
  const config = { responsive: true, displaylogo: false, displayModeBar: touch ? false : "hover", modeBarButtons: [buttons] };

  const coloured = (value, style) => {
    if (typeof value === "string") {
      const name = /^var\((--[a-z]+)\)$/.exec(value);
      return name ? style.getPropertyValue(name[1]).trim() : value;
    }
    if (Array.isArray(value)) return value.map((each) => coloured(each, style));
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, each]) => [key, coloured(each, style)]));
    }
    return value;
  };

  const draw = () => {
    const style = getComputedStyle(root);
    for (const [name, figure] of Object.entries(figures)) {
      const { data, layout } = coloured(figure, style);
      // Dragging zooms with a mouse; a finger has to be able to scroll past.
      layout.dragmode = touch ? false : "zoom";
      Plotly.react(`plot-${name}`, data, layout, config);
    }
  };

  const button = document.getElementById("theme");
  const dark = () => (root.dataset.theme || (system.matches ? "dark" : "light")) === "dark";
  const show = () => {
    button.textContent = dark() ? "Light" : "Dark";
    draw();
  };
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    show();
  });
  system.addEventListener("change", show);
  show();
})();
