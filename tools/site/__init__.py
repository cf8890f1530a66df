"""The site: every notebook and document of the repository as pages, in both languages (docs/site.md)."""
