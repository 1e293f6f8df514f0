// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"time"

	"github.com/quernmr/quern/internal/membership"
	"github.com/quernmr/quern/mapreduce/cluster/identity"
	"github.com/spf13/cobra"
)

func (a *app) certsCommand() *cobra.Command {
	var issue, name string
	var renew bool
	var validity time.Duration
	cmd := &cobra.Command{
		Use:   "certs DIR [--issue ROLE --name NAME | --renew]",
		Short: "make the certificates, the gossip's key and the tokens of a cluster",
		Long: `Makes a folder with all that the processes of a cluster trust each other by:

  ca.pem, ca-key.pem           the authority; its key stays where certificates are made
  master.pem, worker.pem,      certificates and their keys, one for each role
  client.pem and ...-key.pem
  gossip.keys                  what the gossip of master and workers is encrypted with
  tokens, token                what the master knows submitters by, and the first one's

Copy to a host what its role needs: ca.pem, the role's certificate and key; for master
and workers gossip.keys; for the master tokens; for who submits token.

--issue makes another certificate, in the folder NAME within DIR, with all that belongs
to it: give each worker or user one of its own. A client's gets a token, too, which
the master takes when it is started again. --renew replaces the certificates in DIR
itself; running processes take them up without a restart once they are copied.`,
		Example: `  quern certs cluster/
  quern certs cluster/ --issue client --name ann
  quern certs cluster/ --renew`,
		GroupID: clusterCommands,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 || args[0] == "" {
				return usageErrorf(cmd, "one folder is wanted, DIR")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			dir := args[0]
			o := identity.Options{Validity: validity}
			switch {
			case validity < 0:
				return usageErrorf(cmd, "--validity %v: must not be negative", validity)
			case issue != "" && renew:
				return usageErrorf(cmd, "--issue makes a new certificate, --renew those that are there: give one of the two")
			case (issue == "") != (name == ""):
				return usageErrorf(cmd, "--issue ROLE and --name NAME go together")
			case issue != "":
				return certsError(issueCertificate(cmd, dir, issue, name, o))
			case renew:
				for _, role := range identity.Roles() {
					if _, err := identity.Issue(dir, role, "", o); err != nil {
						return certsError(err)
					}
				}
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s: the certificates of %s are new; copy them to their hosts\n", dir, rolesText())
				return err
			}
			if err := identity.Create(dir, o); err != nil {
				return certsError(err)
			}
			if err := makeSecrets(dir); err != nil {
				return certsError(err)
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s: an authority, certificates of %s, a key for the gossip, and a token\n", dir, rolesText())
			return err
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&issue, "issue", "", "make a certificate for a `role`: master, worker or client")
	flags.StringVar(&name, "name", "", "`name` of the worker or user that it is for")
	flags.BoolVar(&renew, "renew", false, "replace the certificates in DIR, signed by the same authority")
	flags.DurationVar(&validity, "validity", 0, "`time` that certificates are valid; default 8760h, a year")
	_ = cmd.RegisterFlagCompletionFunc("issue", cobra.FixedCompletions(identity.Roles(), cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// rolesText lists the roles in words.
func rolesText() string {
	roles := identity.Roles()
	last := len(roles) - 1
	return strings.Join(roles[:last], ", ") + " and " + roles[last]
}

// certsError sees what is wrong with a question: there is an authority already, or none, or the error is about no
// file at all, and so about a role or a name. Files that can't be read or written are ours,
// and no inputs of a job.
func certsError(err error) error {
	path, onFile := failedPath(err)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, identity.ErrExists):
		return &usageError{err, "--issue makes another certificate of it, --renew new ones"}
	case errors.Is(err, fs.ErrNotExist) && filepath.Base(path) == identity.CAFile:
		return &usageError{err, "'quern certs DIR' makes an authority, which --issue and --renew need"}
	case errors.Is(err, fs.ErrNotExist) && filepath.Base(path) == identity.CAKeyFile:
		return &usageError{err: err}
	case !onFile:
		return &usageError{err: err}
	}
	return errors.New(oneLine(err))
}

// makeSecrets makes the key of the gossip and the first token.
func makeSecrets(dir string) error {
	key, err := membership.NewKey()
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, keyringFile), []byte(key+"\n"), 0o600); err != nil {
		return err
	}
	name := "admin"
	if u, err := user.Current(); err == nil && u.Username != "" {
		name = filepath.Base(u.Username)
	}
	return addToken(dir, dir, name)
}

// addToken makes a token, for a user's folder and the list of all.
func addToken(dir, folder, name string) error {
	var secret [24]byte
	_, _ = rand.Read(secret[:]) // it never fails
	token := hex.EncodeToString(secret[:])
	if err := os.WriteFile(filepath.Join(folder, tokenFile), []byte(token+"\n"), 0o600); err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(dir, tokensFile), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(f, "%s %s\n", name, token)
	return errors.Join(err, f.Close())
}

// issueCertificate makes a folder with all that one process needs.
func issueCertificate(cmd *cobra.Command, dir, role, name string, o identity.Options) error {
	if role == identity.Client {
		if tokens, err := readTokens(filepath.Join(dir, tokensFile)); err == nil && tokens[name] != "" {
			return fmt.Errorf("%s has a token in %s already: take that line out first", name, filepath.Join(dir, tokensFile))
		}
	}
	folder, err := identity.Issue(dir, role, name, o)
	if err != nil {
		return err
	}
	more := ""
	switch role {
	case identity.Client:
		if err := addToken(dir, folder, name); err != nil {
			return err
		}
		more = "; the master takes the token once it is started again"
	case identity.Master, identity.Worker:
		for _, file := range []string{keyringFile, tokensFile} {
			if file == tokensFile && role == identity.Worker {
				continue
			}
			text, err := os.ReadFile(filepath.Join(dir, file))
			if err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(folder, file), text, 0o600); err != nil {
				return err
			}
		}
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: all that the %s %s needs%s\n", folder, role, name, more)
	return err
}
