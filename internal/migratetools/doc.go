// Package migratetools shows that what inbox.Export returns is right for the tools that
// it names: each makes the tables from it. It is a module of its own, so that the tools
// are nobody's dependency.
package migratetools
