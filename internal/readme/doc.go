// Command readme is the program of the README, so that it compiles.
package main
