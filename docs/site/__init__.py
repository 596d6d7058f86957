"""The documentation as a site: what MkDocs needs beyond mkdocs.yml, and what its tests share."""
