package program

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"strings"
	"testing"

	"github.com/onceward/onceward/bench/internal/compare"
)

var parts = []Part[*[]string]{
	{"first", "about the first", func(_ context.Context, ran *[]string) error { *ran = append(*ran, "first"); return nil }},
	{"second", "about the second", func(_ context.Context, ran *[]string) error { *ran = append(*ran, "second"); return nil }},
	{"broken", "about the third", func(context.Context, *[]string) error { return errBroken }},
}

var errBroken = errors.New("it broke")

func TestHelpIsNoFailure(t *testing.T) {
	for _, arg := range []string{"-help", "-h"} {
		var out bytes.Buffer
		err := NewFlags("it", parts, &out).Parse([]string{arg})
		if !errors.Is(err, flag.ErrHelp) {
			t.Fatalf("%s: error = %v, want %v", arg, err, flag.ErrHelp)
		}
		for _, want := range []string{"usage: it [flags]", "second", "about the second", "-rounds"} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%s: no %q in\n%s", arg, want, &out)
			}
		}
		var told bytes.Buffer
		if code := exitCode("it", fmt.Errorf("parse: %w", err), &told); code != 0 || told.Len() > 0 {
			t.Errorf("%s: exit code %d, said %q, want 0 and nothing", arg, code, &told)
		}
	}
}

func TestFailureIsTold(t *testing.T) {
	var told bytes.Buffer
	if code := exitCode("it", errBroken, &told); code != 1 || told.String() != "it: it broke\n" {
		t.Errorf("exit code %d, said %q", code, &told)
	}
	if code := exitCode("it", nil, &told); code != 0 {
		t.Errorf("exit code %d of no error, want 0", code)
	}
}

func TestFlagsThatAreRefused(t *testing.T) {
	for _, args := range [][]string{{"-rounds", "-1"}, {"-run", "("}, {"calls"}, {"-nothing"}} {
		var out bytes.Buffer
		if err := NewFlags("it", parts, &out).Parse(args); err == nil || errors.Is(err, flag.ErrHelp) {
			t.Errorf("flags %q: error = %v, want a refusal", args, err)
		}
	}
}

func TestRunsWhatIsWanted(t *testing.T) {
	run := func(only string) (ran []string, prepared int, err error) {
		var out bytes.Buffer
		f := NewFlags("it", parts, &out)
		if err := f.Parse([]string{"-quick", "-run", only}); err != nil {
			t.Fatal(err)
		}
		report := f.Report(&out)
		err = Run(t.Context(), report, parts, f.Wanted, &ran, func(context.Context) error { prepared++; return nil })
		report.AtLeast("a", compare.Exactly(1), 1)
		if !strings.Contains(out.String(), "target quick:a ") {
			t.Errorf("no target with the prefix of -quick in\n%s", &out)
		}
		return ran, prepared, err
	}
	ran, prepared, err := run("first|sec")
	if err != nil || strings.Join(ran, " ") != "first second" || prepared != 2 {
		t.Errorf("ran %v, prepared %d times, error %v", ran, prepared, err)
	}
	if _, _, err := run("nobody"); err == nil {
		t.Error("nothing to run was no error")
	}
	if _, _, err := run(""); !errors.Is(err, errBroken) || !strings.HasPrefix(err.Error(), "broken: ") {
		t.Errorf("error = %v, want it to name the part", err)
	}
}
