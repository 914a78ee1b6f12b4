// Package gateway serves what concerns the gateway as a whole: its health, its keys and its CAs.
package gateway
