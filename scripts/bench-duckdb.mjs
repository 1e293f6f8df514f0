// SPDX-License-Identifier: Apache-2.0

// Runs one query of the benchmark in DuckDB, with all cores, and writes its
// rows as lines of tab-separated values:
//
//   node bench-duckdb.mjs words|spaces|lines|rows INPUT OUTPUT
//
// DUCKDB_HOME names the folder whose node_modules hold @duckdb/node-api.
import { createRequire } from "node:module";
import { join, resolve } from "node:path";
import { cwd, env, exit, argv } from "node:process";

const require = createRequire(join(resolve(env.DUCKDB_HOME ?? cwd()), "package.json"));
const { DuckDBInstance } = require("@duckdb/node-api");

const [query, input, output] = argv.slice(2);
const literal = (s) => "'" + s.replaceAll("'", "''") + "'";

// A line is one column: the delimiter is a byte that text does not have, and nothing quotes.
const lines = `read_csv(${literal(input ?? "")}, header = false, columns = {'line': 'VARCHAR'}, delim = '\x01',
  quote = '', escape = '', new_line = '\\n', auto_detect = false, null_padding = false,
  max_line_size = 16777216, strict_mode = false)`;

const queries = {
  // string_split takes one separator, so the other white space of ASCII becomes a space first.
  words: `SELECT word, count(*) AS n
    FROM (SELECT unnest(string_split(translate(line, chr(9) || chr(11) || chr(12) || chr(13), '    '), ' ')) AS word FROM ${lines})
    WHERE word <> '' GROUP BY word`,
  // The same with spaces alone: less work and not the same result, but the least that DuckDB can do.
  spaces: `SELECT word, count(*) AS n FROM (SELECT unnest(string_split(line, ' ')) AS word FROM ${lines})
    WHERE word <> '' GROUP BY word`,
  lines: `SELECT line, count(*) AS n FROM ${lines} GROUP BY line`,
  rows: `SELECT station, min(temperature), avg(temperature), max(temperature)
    FROM read_csv(${literal(input ?? "")}, header = false, delim = ';', quote = '', escape = '', auto_detect = false,
      columns = {'station': 'VARCHAR', 'temperature': 'DOUBLE'})
    GROUP BY station`,
};

if (!(query in queries) || !input || !output) {
  console.error("usage: node bench-duckdb.mjs words|spaces|lines|rows INPUT OUTPUT");
  exit(2);
}
const instance = await DuckDBInstance.create(":memory:");
const connection = await instance.connect();
await connection.run("SET preserve_insertion_order = false");
await connection.run(`COPY (${queries[query]}) TO ${literal(output)} (FORMAT csv, HEADER false, DELIMITER '\t', QUOTE '', ESCAPE '')`);
connection.closeSync();
