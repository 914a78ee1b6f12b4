package conformance

import (
	"context"
	"net/http"
	"slices"
	"time"

	"boxgate/conformance/websocket"
)

// WebSocketHandler returns the echo server for the WebSocket cases.
func WebSocketHandler() http.Handler { return websocket.Echo() }

// patience bounds the time a server takes to close a connection.
const patience = 10 * time.Second

// webSocket runs the cases. Unless Full is set, the cases of limits and compression are smaller than Autobahn's.
func webSocket(ctx context.Context, target Target, dial websocket.Dialer) []Result {
	shrink, messages, octets := 16, 20, 128<<10
	if target.Full {
		shrink, messages, octets = 1, 1000, 4<<20
	}
	cases := slices.Concat(websocket.Protocol(), websocket.Limits(shrink), websocket.Compression(messages, octets))
	var out []Result
	for _, v := range websocket.Run(ctx, dial, cases, patience) {
		out = append(out, Result{Case: v.Number, Title: v.Title, Outcome: v.Outcome, Seen: v.Seen})
	}
	return out
}
