// Package secrets follows the secrets of header rules, placeholders and the store to where they may be, and looks for them
// everywhere else.
package secrets
