// Package manager reads values from secret managers by their HTTP APIs: Vault's key-value store (and OpenBao's), 1Password
// Connect and Google Secret Manager.
package manager
