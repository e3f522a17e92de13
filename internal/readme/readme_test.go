package main

import (
	"os"
	"strings"
	"testing"
)

// The README shows the program below its imports, to the letter.
func TestReadmeShowsThisProgram(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile("main.go")
	if err != nil {
		t.Fatal(err)
	}
	_, body, ok := strings.Cut(string(program), "\n)\n\n")
	if !ok {
		t.Fatal("main.go has no import block")
	}
	if !strings.Contains(string(readme), "```go\n"+body+"```") {
		t.Error("README.md does not show internal/readme/main.go as it is; copy what is below its imports")
	}
}
