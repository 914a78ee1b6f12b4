//go:build !race

package ssh

const raced = false
