// Package sdk holds end-to-end tests that drive a gateway as programs written for the hosted product do: with the npm package
// @upstash/box, unmodified, and with curl as docs/api.md says. The description of the API is held to a public linter, and the
// API to its description.
package sdk
