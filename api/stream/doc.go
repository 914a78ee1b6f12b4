// Package stream contains the formats of streamed responses: NDJSON, server-sent events and the frames of a command's
// output. It is shared by the handlers and the client.
package stream
