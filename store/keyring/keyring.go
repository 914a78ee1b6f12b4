// Package keyring encrypts the store's data key by age, to a key file or a passphrase.
package keyring

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"filippo.io/age"

	"boxgate/store/layout"
	"boxgate/store/private"
)

// scryptWorkFactor makes a guess of the passphrase cost 2^16 rounds: about 0.2 s and 64 MiB, paid once at each start.
const scryptWorkFactor = 16

// Keyring wraps the data key by age.
type Keyring struct {
	Sealing    string
	recipient  age.Recipient
	identities []age.Identity // that of recipient; during a change of the key file the old and the new one
	path       string         // of the key file; "" for a passphrase
	Schema     int            // minimum schema of the store, as recorded in the key file; 0: not recorded
	remedy     string         // remedy if the key is wrong
}

// Wrap encrypts a data key.
func (k Keyring) Wrap(key []byte) ([]byte, error) {
	var out bytes.Buffer
	w, err := age.Encrypt(&out, k.recipient)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(key); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil { // writes the last chunk
		return nil, err
	}
	return out.Bytes(), nil
}

// Unwrap returns the data key and the index of the identity that opened it.
func (k Keyring) Unwrap(wrapped []byte) (key []byte, which int, err error) {
	var r io.Reader
	for i, id := range k.identities {
		if r, err = age.Decrypt(bytes.NewReader(wrapped), id); err == nil {
			which = i
			break
		}
	}
	if err != nil {
		return nil, 0, fmt.Errorf("%s (%w)", k.remedy, err)
	}
	if key, err = io.ReadAll(r); err != nil {
		return nil, 0, fmt.Errorf("the data key of the store is damaged; restore a backup: %w", err)
	}
	return key, which, nil
}

// Normalize brings the key file into its normal state: it has only the identity that opens the store, and records the
// schema of the store.
func (k Keyring) Normalize(which int) error {
	if k.path == "" || len(k.identities) < 2 && k.Schema >= layout.SchemaNow {
		return nil
	}
	id, ok := k.identities[which].(*age.X25519Identity)
	if !ok {
		return nil
	}
	return WriteFile(k.path, id)
}

// Open returns the keyring of the passphrase if there is one, else of the key file. A missing key file is an error,
// because a new one could not open the store; after an interrupted first start, Open finds it under its temporary name.
func Open(dir, passphrase, env string) (Keyring, error) {
	if passphrase != "" {
		return OfPassphrase(passphrase, env)
	}
	path := filepath.Join(dir, layout.FileSecret)
	file, err := ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) && os.Rename(path+layout.NewSuffix, path) == nil {
		file, err = ReadFile(path)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return Keyring{}, fmt.Errorf("the key file %s is missing: without it the secrets of this store cannot be read; "+
			"restore it from a backup", path)
	}
	if err != nil {
		return Keyring{}, err
	}
	k := OfFile(path, file.Identities)
	k.Schema = file.schema
	return k, nil
}

// OfFile returns the keyring of a key file with these identities: the first encrypts, any of them decrypts.
func OfFile(path string, ids []*age.X25519Identity) Keyring {
	k := Keyring{Sealing: layout.SealedByFile, recipient: ids[0].Recipient(), path: path}
	for _, id := range ids {
		k.identities = append(k.identities, id)
	}
	k.remedy = fmt.Sprintf("%s is not the key that this store was created with: restore the right one", path)
	return k
}

// OfPassphrase returns the keyring of a passphrase; env is the variable that contained it, for messages.
func OfPassphrase(passphrase, env string) (Keyring, error) {
	recipient, err := age.NewScryptRecipient(passphrase)
	if err != nil {
		return Keyring{}, err
	}
	recipient.SetWorkFactor(scryptWorkFactor)
	identity, err := age.NewScryptIdentity(passphrase)
	if err != nil {
		return Keyring{}, err
	}
	hint := fmt.Sprintf("the passphrase in %s is not the one that this store was created with", env)
	return Keyring{Sealing: layout.SealedByPassphrase, recipient: recipient, identities: []age.Identity{identity}, remedy: hint}, nil
}

// File is the content of a key file.
type File struct {
	Identities []*age.X25519Identity // one, or two of which one opens the store
	schema     int                   // the minimum schema of the store; 0: not recorded
}

// schemaMark begins the comment of a key file that records the schema of the store. Without it, an attacker with an old
// copy of a store, from before documents had tags, could change that copy at will and replace the current store by it.
const schemaMark = "# schema of the store: "

// ReadFile reads age X25519 identities in the format of age-keygen, from a file that only its owner can access.
func ReadFile(path string) (File, error) {
	f, err := os.Open(path)
	if err != nil {
		return File{}, fmt.Errorf("the key file cannot be read: %w", err)
	}
	defer f.Close()
	info, err := f.Stat() // of the open file, which cannot be replaced in between
	if err != nil {
		return File{}, err
	}
	if err := private.Check(path, info); err != nil {
		return File{}, err
	}
	text, err := io.ReadAll(io.LimitReader(f, 64<<10))
	if err != nil {
		return File{}, fmt.Errorf("the key file cannot be read: %w", err)
	}
	defer clear(text)
	parsed, err := age.ParseIdentities(bytes.NewReader(text))
	if err != nil {
		return File{}, fmt.Errorf("the key file %s has no age identity: restore the right one", path) // err may quote the file
	}
	if len(parsed) > 2 {
		return File{}, fmt.Errorf("the key file %s must have one age identity, not %d", path, len(parsed))
	}
	var file File
	for _, p := range parsed {
		id, ok := p.(*age.X25519Identity)
		if !ok {
			return File{}, fmt.Errorf("the key file %s must have an X25519 identity (AGE-SECRET-KEY-1…)", path)
		}
		file.Identities = append(file.Identities, id)
	}
	file.schema = markedSchema(text)
	return file, nil
}

// markedSchema reads the comment that begins with schemaMark.
func markedSchema(text []byte) int {
	for line := range bytes.Lines(text) {
		if said, ok := bytes.CutPrefix(line, []byte(schemaMark)); ok {
			if n, err := strconv.Atoi(string(bytes.TrimSpace(said))); err == nil {
				return n
			}
		}
	}
	return 0
}

// WriteFile replaces the identities of the key file, atomically.
func WriteFile(path string, ids ...*age.X25519Identity) error {
	var text bytes.Buffer
	fmt.Fprintf(&text, "# boxgate: opens the secrets in %s in this directory. Keep a backup elsewhere.\n%s%d\n", layout.FileDB, schemaMark, layout.SchemaNow)
	for _, id := range ids {
		fmt.Fprintf(&text, "# public key: %s\n%s\n", id.Recipient(), id)
	}
	defer clear(text.Bytes())
	if err := private.Write(path, text.Bytes()); err != nil {
		return fmt.Errorf("the key file cannot be written: %w", err)
	}
	return nil
}

// Make returns the keyring for a new store: of the passphrase, or of a key file that it creates.
func Make(path, passphrase, env string) (Keyring, error) {
	if passphrase != "" {
		return OfPassphrase(passphrase, env)
	}
	id, err := age.GenerateX25519Identity()
	if err != nil {
		return Keyring{}, err
	}
	return OfFile(path, []*age.X25519Identity{id}), WriteFile(path, id)
}
