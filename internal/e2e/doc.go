// Package e2e holds the tests of the whole chain, on real servers.
package e2e
