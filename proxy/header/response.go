package header

import "boxgate/relay/h1"

// PassesResponse reports whether a response field, other than those for framing and the connection, is sent to the client.
func PassesResponse(f *h1.Field) bool { return f.Kind != h1.AltSvc || !offersHTTP3(f.Value) }
