// Package manager reads values from secret managers by their HTTP APIs: the key-value store of Vault (and OpenBao),
// 1Password Connect and Google Secret Manager.
package manager
