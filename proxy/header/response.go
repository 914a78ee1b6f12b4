package header

import "boxgate/internal/h1"

// PassesResponse reports whether a client is sent a field of a response that neither frames it nor belongs to its connection.
func PassesResponse(f *h1.Field) bool { return f.Kind != h1.AltSvc || !offersHTTP3(f.Value) }
