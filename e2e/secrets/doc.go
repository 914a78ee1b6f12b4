// Package secrets tests that the secrets of header rules, placeholders and the store are only where they belong, and
// searches for them everywhere else.
package secrets
