"""The documentation as a site: what it is built from, and what its tests share."""
