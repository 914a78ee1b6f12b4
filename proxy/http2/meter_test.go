package http2_test

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/net/http2"

	"boxgate/llm"
	"boxgate/proxy"
	"boxgate/proxy/proxytest"
)

// counter is a meter that counts calls.
type counter struct{ reserved, settled, tokens atomic.Int64 }

// Reserve implements [llm.Meter].
func (c *counter) Reserve(string, string, llm.Call) (llm.Reservation, error) {
	c.reserved.Add(1)
	return c, nil
}

// Settle implements [llm.Reservation].
func (c *counter) Settle(u llm.Usage, _ string, complete bool) {
	if complete {
		c.tokens.Add(int64(u.Output))
	}
	c.settled.Add(1)
}

// TestRetriesAreMeteredOnce: a request that is sent again because the server did not process it, on the same connection or another, is reserved and
// settled once; so is one that never succeeds.
func TestRetriesAreMeteredOnce(t *testing.T) {
	t.Parallel()
	refuse := func(s *rogue, id uint32) { _ = s.WriteRSTStream(id, http2.ErrCodeRefusedStream) }
	leave := func(s *rogue, id uint32) { _ = s.WriteGoAway(id-1, http2.ErrCodeNo, nil); _ = s.conn.Close() }
	for name, c := range map[string]struct {
		unprocessed func(s *rogue, id uint32)
		times       int32
		tokens      int64
	}{"refused once": {refuse, 1, 7}, "the server leaves": {leave, 1, 7}, "refused ever again": {refuse, 100, 0}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			meter := &counter{}
			l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient, func(c *proxy.Config) { c.Meter = meter })
			var asked, conns atomic.Int32
			port := rogueServer(l, func(s *rogue, id uint32) {
				if asked.Add(1) <= c.times {
					c.unprocessed(s, id)
					return
				}
				s.head(id, false, ":status", "200")
				_ = s.WriteData(id, true, []byte(`{"usage":{"input_tokens":1,"output_tokens":7}}`))
			}, &conns)
			l.Rules(proxytest.AllowAll, `{"`+proxytest.HostPort(port)+`": {"meter": "anthropic"}}`)
			body := strings.NewReader(`{"model":"m","max_tokens":9}`)
			res, err := l.HTTPClient(port, true).Post("https://"+proxytest.HostPort(port)+"/bad/messages", "application/json", body)
			if (err == nil) != (c.tokens > 0) {
				t.Fatalf("%v, %v", res, err)
			}
			if err == nil {
				proxytest.ReadAll(t, res.Body)
				if _ = res.Body.Close(); res.StatusCode != http.StatusOK {
					t.Errorf("%s", res.Status)
				}
			}
			l.Events.Wait(t, 1)
			proxytest.Await(t, "settled reservation", func() bool { return meter.settled.Load() > 0 })
			if meter.reserved.Load() != 1 || meter.settled.Load() != 1 || meter.tokens.Load() != c.tokens || asked.Load() < 2 {
				t.Errorf("asked %d times: reserved %d, settled %d, %d tokens", asked.Load(), meter.reserved.Load(), meter.settled.Load(), meter.tokens.Load())
			}
		})
	}
}
