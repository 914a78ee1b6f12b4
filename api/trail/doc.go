// Package trail serves the audit trail of the API: its entries, and the check of its integrity. Only admin keys may read
// it.
package trail
