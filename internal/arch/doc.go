// Package arch holds the lines that the tree is drawn by: who may import whom.
// It has tests only.
package arch
