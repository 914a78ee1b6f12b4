// Package sdk has end-to-end tests that use a gateway like programs written for the hosted product: with the unmodified
// npm package @upstash/box, and with curl as in docs/api.md. A public linter checks the description of the API, and the
// API is checked against its description.
package sdk
