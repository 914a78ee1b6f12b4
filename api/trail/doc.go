// Package trail serves the audit trail of the API: who changed what, and whether the trail is whole. Only admin keys may read it.
package trail
