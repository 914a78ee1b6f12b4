// Package agents runs the coding agents of the image debian-agents, unmodified and in boxes, against a server of models: their
// key is in a header rule only. All tests are nightly, because the image is large.
package agents
