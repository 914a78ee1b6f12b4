package origin

import (
	"context"
	"net/http"
	"time"

	"github.com/coder/websocket"
)

// Echo serves WebSockets that return every message, behind public URLs.
func Echo(address string) error {
	server := &http.Server{Addr: address, Handler: http.HandlerFunc(serveEcho), ReadHeaderTimeout: time.Minute}
	return server.ListenAndServe()
}

func serveEcho(w http.ResponseWriter, r *http.Request) {
	c, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true}) // any origin is accepted
	if err != nil {
		return
	}
	defer c.CloseNow() //nolint:errcheck // the client has gone or broken the protocol
	for {
		kind, message, err := c.Read(context.Background())
		if err != nil || c.Write(context.Background(), kind, message) != nil {
			return
		}
	}
}
