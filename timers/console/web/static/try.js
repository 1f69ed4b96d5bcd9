// The page to try calls: Swagger UI shows the OpenAPI document of this console, and asks no other site.
"use strict";
const calls = document.getElementById("calls");

// The parts of Swagger UI's own layout, without its second title and its second main part.
const PARTS = ["SvgAssets", "errors", "AuthorizeBtnContainer", "operations", "Models"];
const layout = ({ React }) => ({
  components: {
    Calls: ({ getComponent }) =>
      React.createElement(
        "div",
        { className: "swagger-ui" },
        PARTS.map((name) => React.createElement(getComponent(name, true), { key: name })),
      ),
  },
});

// What a reader of screens needs, and Swagger UI does not give: levels of headings, names of fields.
function named() {
  for (const each of calls.querySelectorAll(":is(h3, h4)")) each.setAttribute("aria-level", each.matches("h3") ? "2" : "3");
  for (const each of calls.querySelectorAll(":is(select, textarea, input):not([aria-label])")) {
    const parameter = each.closest("[data-param-name]")?.dataset.paramName;
    each.setAttribute("aria-label", parameter ?? (each.matches("textarea") ? "Body" : "Content type"));
  }
}

new MutationObserver(named).observe(calls, { childList: true, subtree: true });
SwaggerUIBundle({
  url: `${document.body.dataset.base}/v1/openapi.json`,
  dom_id: "#calls",
  plugins: [layout],
  layout: "Calls",
  validatorUrl: null,
  docExpansion: "list",
  syntaxHighlight: false,  // it would stop the page for seconds at a long answer
});
