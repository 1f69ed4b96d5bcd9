"""Parts of HTTP servers, and questions to them."""
