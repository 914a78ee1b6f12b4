package ingress

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"boxgate/policy"
)

// While a request waits for its box, its data stays its own, although other requests come, complete and break off, and their
// memory is reused.
func TestAttackFieldsOfAnotherVisitor(t *testing.T) {
	t.Parallel()
	awake := make(chan struct{})
	f := start(t, func(c *Config) {
		c.RequestRate = 1_000_000
		c.Boxes = &sleepers{wake: func(_ context.Context, box policy.BoxID, _ uint16) error {
			if box == "asleep" {
				<-awake
			}
			return nil
		}}
	})
	f.wakeWait = time.Minute
	wake := sync.OnceFunc(func() { close(awake) })
	t.Cleanup(wake)
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Mine", r.Header.Get("X-Mine"))
		_, _ = fmt.Fprint(w, told(r))
	}))
	t.Cleanup(app.Close)
	for _, host := range []string{"asleep", "one"} {
		target := f.expose(host, app, Auth{Open: true})
		target.Box = policy.BoxID(host)
		f.set(host+domain, target)
	}
	ask := func(v *frames, host, mine string) uint32 {
		return v.ask(true, to("GET", host, "/"+mine, "x-mine", mine, "authorization", "Bearer "+mine, "cookie", "a="+mine, "x-"+mine, "1")...)
	}
	const many = 20
	come := func(from int) {
		others := f.frames(t, "one")
		for i := range 10 * many {
			mine := fmt.Sprintf("other-%d", from+i)
			own(t, others.answer(ask(others, "one", mine)), mine)
		}
	}
	come(0)
	v := f.frames(t, "asleep")
	var waiting, gone []uint32
	for i := range 2 * many {
		id := ask(v, "asleep", fmt.Sprintf("waiting-%d", i))
		if i%2 == 0 {
			waiting = append(waiting, id)
		} else {
			gone = append(gone, id)
		}
	}
	until(t, "all wait", func() bool { return f.active.count() == 2*many })
	for _, id := range gone {
		if err := v.WriteRSTStream(id, http2.ErrCodeCancel); err != nil {
			t.Fatal(err)
		}
	}
	until(t, "half have gone", func() bool { return f.active.count() == many })
	come(1000)
	wake()
	answers := v.answers(waiting)
	for i, id := range waiting {
		own(t, answers[id], fmt.Sprintf("waiting-%d", 2*i))
	}
}

// told returns the part of an application's input that identifies a request of the test.
func told(r *http.Request) string {
	var marks []string
	for name := range r.Header {
		if mark, ok := strings.CutPrefix(strings.ToLower(name), "x-"); ok && strings.ContainsAny(mark, "0123456789") {
			marks = append(marks, mark)
		}
	}
	return strings.Join(append([]string{r.URL.Path, r.Header.Get("X-Mine"), r.Header.Get("Authorization"), r.Header.Get("Cookie")}, marks...), " ")
}

// own fails the test unless the response belongs to the request, and the application received only that request's data.
func own(t *testing.T, got response, mine string) {
	t.Helper()
	if want := fmt.Sprintf("/%s %[1]s Bearer %[1]s a=%[1]s %[1]s", mine); got.body != want {
		t.Errorf("the application was sent %q, want %q", got.body, want)
	}
	for _, h := range got.heads {
		for _, field := range h.RegularFields() {
			if field.Name == "x-mine" && field.Value != mine {
				t.Errorf("%s is answered with the field of %s", mine, field.Value)
			}
		}
	}
}

// answers reads the responses of streams until all have ended.
func (v *frames) answers(ids []uint32) map[uint32]response {
	v.t.Helper()
	all := map[uint32]response{}
	open := map[uint32]bool{}
	for _, id := range ids {
		open[id] = true
	}
	for len(open) > 0 {
		f, err := v.ReadFrame()
		if err != nil {
			v.t.Fatalf("%v, with %d open", err, len(open))
		}
		id := f.Header().StreamID
		r := all[id]
		switch f := f.(type) {
		case *http2.MetaHeadersFrame:
			r.heads, r.ended = append(r.heads, f), f.StreamEnded()
		case *http2.DataFrame:
			r.body += string(f.Data())
			r.ended = f.StreamEnded()
		case *http2.RSTStreamFrame:
			r.reset, r.ended = f.ErrCode, true
		}
		if all[id] = r; r.ended {
			delete(open, id)
		}
	}
	return all
}
