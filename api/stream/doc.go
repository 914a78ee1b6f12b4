// Package stream has the formats of answers that come bit by bit: NDJSON, server-sent events and the frames of a command's
// output. The handlers write them and the client reads them.
package stream
