package main

import (
	_ "embed"
	"fmt"
	"strings"
	"time"
)

// committed is the list of flaky tests embedded in the command.
//
//go:embed flaky.txt
var committed string

// testID names a test function: its package's import path and its name.
type testID struct{ pkg, test string }

func (id testID) String() string { return id.pkg + " " + id.test }

// listing is an entry in the list of flaky tests.
type listing struct{ since, cause string }

// parseFlaky reads a list of flaky tests: lines of a package, a test, a date and a cause. Lines that begin with # and empty
// ones are comments.
func parseFlaky(text string) (map[testID]listing, error) {
	list := map[testID]listing{}
	number := 0
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.Fields(line)
		if len(fields) < 4 {
			return nil, fmt.Errorf("line %d: want a package, a test, a date and a cause", number)
		}
		if _, err := time.Parse(time.DateOnly, fields[2]); err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		id := testID{fields[0], fields[1]}
		if strings.Contains(id.test, "/") {
			return nil, fmt.Errorf("line %d: %s is a subtest; list the test function", number, id.test)
		}
		if _, twice := list[id]; twice {
			return nil, fmt.Errorf("line %d: %v is listed twice", number, id)
		}
		list[id] = listing{since: fields[2], cause: strings.Join(fields[3:], " ")}
	}
	return list, nil
}
