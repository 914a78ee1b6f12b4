// Package e2b has end-to-end tests that use a gateway like programs written for E2B: with the unmodified npm package e2b,
// and with curl as its clients in other languages speak.
package e2b
