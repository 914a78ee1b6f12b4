package sdk

import (
	"encoding/json"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"boxgate/e2e/harness"
	"boxgate/internal/nightly"
)

// user is a subject with the tests that use an option.
type user struct {
	world   *harness.World
	subject string
	tests   []string
}

// TestOptionsHaveAnEffect leaves out each option of the SDK in turn, of all calls, or gives it another value of its union. One of
// the tests that use it must then fail: none only passes it.
func TestOptionsHaveAnEffect(t *testing.T) {
	nightly.Only(t)
	t.Parallel()
	n := newNode(t)
	n.types = n.Shapes(t, "@upstash/box")
	plain, _ := newWorld(t)
	serveGitHub(t, plain)
	users := n.users(t, newWorldOfOptions(t), subjectsOfOptions)
	for _, list := range [][]string{subjects, subjectsOfAllBoxes} {
		for option, more := range n.users(t, plain, list) {
			users[option] = append(users[option], more...)
		}
	}
	for _, option := range slices.Sorted(maps.Keys(users)) {
		t.Run(option, func(t *testing.T) {
			if !slices.ContainsFunc(users[option], func(u user) bool { return n.misses(t, u, option) }) {
				t.Errorf("no test misses it, of %d subjects", len(users[option]))
			}
		})
	}
}

// users runs subjects one after the other, and returns the tests that use each option.
func (n node) users(t *testing.T, w *harness.World, subjects []string) map[string][]user {
	t.Helper()
	all := map[string][]user{}
	for _, subject := range subjects {
		of := map[string][]string{}
		for _, r := range n.results(t, w, subject) {
			if r.Error != "" {
				t.Fatalf("%s, %s: %s", subject, r.Test, r.Error)
			}
			for _, option := range r.Used {
				of[option] = append(of[option], r.Test)
			}
		}
		for option, tests := range of {
			all[option] = append(all[option], user{w, subject, tests})
		}
	}
	return all
}

// misses reports whether a test fails without the option.
func (n node) misses(t *testing.T, u user, option string) bool {
	t.Helper()
	only, err := json.Marshal(u.tests)
	if err != nil {
		t.Fatal(err)
	}
	results := n.results(t, u.world, u.subject, "WITHOUT="+option, "ONLY="+string(only))
	return slices.ContainsFunc(results, func(r result) bool { return r.Error != "" })
}

// results runs a subject with additional variables, and returns the results of its tests. A subject that ends early has failed.
func (n node) results(t *testing.T, w *harness.World, subject string, env ...string) (all []result) {
	t.Helper()
	cmd := n.Command(t.Context(), "run.mjs", subject)
	cmd.Env = append(append(os.Environ(), n.environment(strings.TrimSpace(w.KeyFile("api-key")))...), env...)
	err := lines(w, cmd, func(dec *json.Decoder) error {
		var r result
		err := dec.Decode(&r)
		if r.Minute {
			passMinute(w)
		} else if err == nil {
			all = append(all, r)
		}
		return err
	})
	if err != nil {
		all = append(all, result{Test: subject, Error: err.Error()})
	}
	return all
}
