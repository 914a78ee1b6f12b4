// Package exchange implements what requests of all HTTP versions share: judging them, setting headers, masking secrets
// in their responses, and recording one event for each.
package exchange
