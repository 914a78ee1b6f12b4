// Package gateway serves what concerns the gateway as a whole: its health and state, its keys and its CAs.
package gateway
