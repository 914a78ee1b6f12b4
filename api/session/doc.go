// Package session serves interactive commands over a WebSocket: input, output, a terminal, signals.
//
// Frames are JSON objects in text messages. The first is the client's start frame; docs/boxes.md describes them all.
package session
