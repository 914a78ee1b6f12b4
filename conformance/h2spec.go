package conformance

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/summerwind/h2spec/config"
	"github.com/summerwind/h2spec/generic"
	"github.com/summerwind/h2spec/hpack"
	"github.com/summerwind/h2spec/http2"
	"github.com/summerwind/h2spec/spec"
)

// h2specWait bounds h2spec's wait for a response that may not come.
const h2specWait = 2 * time.Second

// h2spec runs all cases of github.com/summerwind/h2spec, including the strict ones, against an HTTP/2 server.
func h2spec(_ context.Context, target Target) ([]Result, error) {
	c := &config.Config{
		Host: target.Host, Port: 443, Path: "/", TLS: true, Strict: true, Timeout: h2specWait, MaxHeaderLen: 4000,
	}
	var out []Result
	for _, group := range []*spec.TestGroup{generic.Spec(), http2.Spec(), hpack.Spec()} {
		group.Test(c) // exits if it cannot connect
		out = collect(group, out)
	}
	return out, nil
}

// collect appends the results of a group and its subgroups.
func collect(group *spec.TestGroup, out []Result) []Result {
	for _, tc := range append(group.Tests, group.StrictTests...) {
		r := Result{Case: group.ID(), Title: tc.Desc, Outcome: Failed, Detail: "it was not run"}
		if tc.Result != nil {
			r.Case, r.Outcome, r.Detail = fmt.Sprintf("%s/%d", group.ID(), tc.Result.Sequence), OK, ""
			switch {
			case tc.Result.Skipped:
				r.Outcome = "SKIPPED"
			case tc.Result.Failed:
				r.Outcome, r.Detail = Failed, tc.Result.Error.Error()
			}
		}
		out = append(out, r)
	}
	for _, g := range group.Groups {
		out = collect(g, out)
	}
	return out
}

// HTTP2Handler returns the server for h2spec: a page with a body, because h2spec waits for DATA frames.
func HTTP2Handler() http.Handler {
	page := strings.Repeat("0123456789abcdef", 32)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/plain")
		_, _ = io.WriteString(w, page)
	})
}
