package demo

import (
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// The demo starts its own executable as instances, which is that of the tests here.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case ChildCommand:
			if err := Child(); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			os.Exit(0)
		case wholeDemo:
			os.Exit(small().play(os.Stdout, os.Stderr))
		}
	}
	goleak.VerifyTestMain(m)
}

// wholeDemo lets the executable of the tests be a demo of its own.
const wholeDemo = "whole-demo"

// small are the options of a short run.
func small() Options {
	o, err := parse([]string{"-orders", "300"}, os.Stderr)
	if err != nil {
		panic(err)
	}
	o.timing = timing{lease: time.Second, session: 5 * time.Second, scanEvery: 100 * time.Millisecond}
	return o
}
