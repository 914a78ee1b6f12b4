// Package session serves commands that their caller talks to while they run, over a WebSocket: input, output, a terminal, signals.
//
// Frames are JSON objects in text messages. The first is the client's start; docs/boxes.md has them all.
package session
