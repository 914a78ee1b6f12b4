// Package keys manages the API keys and their quotas: [Service] creates, replaces and revokes keys, and [Holdings] counts
// the objects made with them. The service also rotates the key of the store, and backs up and verifies the store.
package keys
