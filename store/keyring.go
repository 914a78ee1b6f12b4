package store

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"filippo.io/age"
)

// scryptWorkFactor makes a guess of the passphrase cost 2^16 rounds: some 0.2 s and 64 MiB, paid once at each start.
const scryptWorkFactor = 16

// openKeyring returns what encrypts the data key: the passphrase if there is one, else the key file, which is made on
// the first start alone. Later a missing key file is an error: a new one could open nothing.
func openKeyring(dir, passphrase, env string, first bool) (keyring, error) {
	if passphrase != "" {
		return passphraseKeyring(passphrase, env)
	}
	path := filepath.Join(dir, fileSecret)
	id, err := readKeyFile(path)
	if errors.Is(err, fs.ErrNotExist) && first {
		id, err = makeKeyFile(path)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return keyring{}, fmt.Errorf("the key file %s is missing: without it the secrets of this store cannot be read; "+
			"put it back from a backup", path)
	}
	if err != nil {
		return keyring{}, err
	}
	hint := fmt.Sprintf("%s is not the key that this store was made with: put the right one back", path)
	return keyring{sealing: sealedByFile, recipient: id.Recipient(), identity: id, hint: hint}, nil
}

func passphraseKeyring(passphrase, env string) (keyring, error) {
	recipient, err := age.NewScryptRecipient(passphrase)
	if err != nil {
		return keyring{}, err
	}
	recipient.SetWorkFactor(scryptWorkFactor)
	identity, err := age.NewScryptIdentity(passphrase)
	if err != nil {
		return keyring{}, err
	}
	hint := fmt.Sprintf("the passphrase in %s is not the one that this store was made with", env)
	return keyring{sealing: sealedByPassphrase, recipient: recipient, identity: identity, hint: hint}, nil
}

// readKeyFile reads an age X25519 identity as age-keygen writes it, from a file that is ours alone.
func readKeyFile(path string) (*age.X25519Identity, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("the key file cannot be read: %w", err)
	}
	defer f.Close()
	info, err := f.Stat() // of the open file: it cannot be changed for another in between
	if err != nil {
		return nil, err
	}
	if err := checkPrivate(path, info); err != nil {
		return nil, err
	}
	ids, err := age.ParseIdentities(f)
	if err != nil {
		return nil, fmt.Errorf("the key file %s holds no age identity: put the right one back", path) // err may quote the file
	}
	if len(ids) != 1 {
		return nil, fmt.Errorf("the key file %s must hold one age identity, not %d", path, len(ids))
	}
	id, ok := ids[0].(*age.X25519Identity)
	if !ok {
		return nil, fmt.Errorf("the key file %s must hold an X25519 identity (AGE-SECRET-KEY-1…)", path)
	}
	return id, nil
}

func makeKeyFile(path string) (*age.X25519Identity, error) {
	id, err := age.GenerateX25519Identity()
	if err != nil {
		return nil, err
	}
	var text bytes.Buffer
	fmt.Fprintf(&text, "# boxgate: opens the secrets in %s beside it. Keep a copy somewhere else.\n# public key: %s\n%s\n",
		fileDB, id.Recipient(), id)
	if err := writePrivate(path, text.Bytes()); err != nil {
		return nil, fmt.Errorf("the key file cannot be written: %w", err)
	}
	return id, nil
}
