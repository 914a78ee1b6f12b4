// Package keys keeps the API keys and their quotas: [Service] makes, replaces and revokes keys, and [Holdings] counts what keys have made.
// The service also changes the key of the store, and copies and checks the store.
package keys
