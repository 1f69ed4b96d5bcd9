// The page to try calls: Swagger UI shows the OpenAPI document of this console, and asks no other site.
"use strict";
SwaggerUIBundle({
  url: `${document.body.dataset.base}/v1/openapi.json`,
  dom_id: "#calls",
  validatorUrl: null,
  docExpansion: "list",
  syntaxHighlight: false,  // it would stop the page for seconds at a long answer
});
