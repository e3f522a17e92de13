// Package program is what the benchmark programs have in common: flags, parts that
// can be chosen by name, profiles, and the exit code.
//
//	NAME              all of it
//	NAME -quick       a look at everything; its targets are named "quick:..."
//	NAME -run 'a|b'   only some parts
//	NAME -rounds 3
//	NAME -json        one JSON object per line
//
// A missed target is not an error: it is printed as short, and the program goes on.
package program
