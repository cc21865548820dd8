// Reads a server by the JDBC driver of Arrow Flight SQL: java -cp DRIVER JdbcProgram.java URL KEY KEY_OF_BOB
// Prints a line for each thing it has read: its name, a tab, and the values.

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.math.BigDecimal;
import java.sql.Connection;
import java.sql.DatabaseMetaData;
import java.sql.Date;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.sql.Struct;
import java.sql.Timestamp;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Calendar;
import java.util.List;
import java.util.Properties;
import java.util.TimeZone;

public class JdbcProgram {
    private interface Read {
        Object run() throws Exception;
    }

    private interface ReadRow {
        Object of(ResultSet result) throws Exception;
    }

    public static void main(String[] arguments) throws Exception {
        TimeZone.setDefault(TimeZone.getTimeZone("Europe/Berlin"));
        String url = arguments[0], key = arguments[1];
        connectByEachCredential(url, key);
        connectToEachDatabase(url, key);
        readWithinPolicies(url, arguments[2]);
        Properties properties = new Properties();
        properties.put("x-api-key", key);
        try (Connection connection = DriverManager.getConnection(url, properties)) {
            query(connection);
            readTypes(connection);
            bindParameters(connection);
            changeViews(connection);
            describe(connection.getMetaData());
            fail(connection);
            stop(connection);
        }
        System.exit(0); // a connection that was refused leaves a thread behind
    }

    private static void connectToEachDatabase(String url, String key) {
        for (String[] each : new String[][] {
            {"a database", "database=sales", "ratings"},
            {"a default namespace", "namespace-path=sales", "ratings"},
            {"a catalog", "catalog=tiltyard", "films"},
        }) {
            Properties properties = new Properties();
            properties.put("x-api-key", key);
            print(each[0], () -> {
                try (Connection connection = DriverManager.getConnection(url + "&" + each[1], properties);
                        Statement statement = connection.createStatement()) {
                    return rows(statement.executeQuery("SELECT count(*) FROM " + each[2]));
                }
            });
        }
    }

    private static void readWithinPolicies(String url, String key) throws Exception {
        Properties properties = new Properties();
        properties.put("x-api-key", key);
        try (Connection connection = DriverManager.getConnection(url, properties);
                Statement statement = connection.createStatement()) {
            String query = "SELECT title, budget FROM films WHERE id < 5 ORDER BY id";
            print("policies", () -> rows(statement.executeQuery(query)));
            print("policies, plan", () -> rows(statement.executeQuery("EXPLAIN " + query)));
        }
    }

    private static void connectByEachCredential(String url, String key) {
        for (String[] pair : new String[][] {
            {"password", "user", "ann", "password", key},
            {"password of another", "user", "bob", "password", key},
            {"wrong password", "user", "ann", "password", key + "x"},
            {"token", "token", key},
            {"no credentials"},
        }) {
            Properties properties = new Properties();
            for (int at = 1; at < pair.length; at += 2) {
                properties.put(pair[at], pair[at + 1]);
            }
            print("connect by " + pair[0], () -> {
                try (Connection connection = DriverManager.getConnection(url, properties);
                        Statement statement = connection.createStatement()) {
                    return rows(statement.executeQuery("SELECT 1 AS one"));
                }
            });
        }
    }

    private static void query(Connection connection) throws Exception {
        try (Statement statement = connection.createStatement()) {
            print("select", () -> rows(statement.executeQuery("SELECT id, title FROM films WHERE id < 3 ORDER BY id")));
            print("many", () -> {
                long count = 0, sum = 0;
                try (ResultSet result = statement.executeQuery("SELECT n FROM numbers")) {
                    while (result.next()) {
                        count++;
                        sum += result.getLong(1);
                    }
                }
                return count + " " + sum;
            });
        }
        String text = "SELECT title, CAST(? AS INT) AS given FROM films WHERE budget > ? AND owner = ? ORDER BY id";
        try (PreparedStatement statement = connection.prepareStatement(text)) {
            print("parameters", () -> statement.getParameterMetaData().getParameterCount());
            print("columns of the prepared", () -> statement.getMetaData().getColumnCount());
            statement.setInt(1, 5);
            statement.setDouble(2, 7.5);
            statement.setString(3, "bob");
            print("prepared", () -> rows(statement.executeQuery()));
            statement.setDouble(2, 20);
            print("prepared again", () -> rows(statement.executeQuery()));
        }
        String ofEachType = "SELECT CAST(? AS BIGINT), CAST(? AS BOOLEAN), CAST(? AS DATE), ?, CAST(? AS BYTEA)";
        try (PreparedStatement statement = connection.prepareStatement(ofEachType)) {
            statement.setLong(1, 1L << 40);
            statement.setBoolean(2, true);
            statement.setDate(3, java.sql.Date.valueOf("2024-02-29"));
            statement.setNull(4, java.sql.Types.VARCHAR);
            statement.setBytes(5, new byte[] {1, 2});
            print("types of parameters", () -> {
                try (ResultSet result = statement.executeQuery()) {
                    result.next();
                    return result.getLong(1) + " " + result.getBoolean(2) + " " + result.getDate(3) + " "
                            + result.getString(4) + " " + result.getBytes(5).length;
                }
            });
        }
    }

    private static void readTypes(Connection connection) throws Exception {
        print("nulls", () -> {
            try (Statement statement = connection.createStatement();
                    ResultSet result = statement.executeQuery("SELECT small FROM types ORDER BY id")) {
                StringBuilder text = new StringBuilder();
                while (result.next()) {
                    text.append(result.getInt(1)).append(' ').append(result.wasNull()).append(' ');
                }
                return text.toString().trim();
            }
        });
        print("decimals", () -> {
            try (Statement statement = connection.createStatement();
                    ResultSet result = statement.executeQuery("SELECT price FROM types ORDER BY id")) {
                result.next();
                BigDecimal first = result.getBigDecimal(1);
                result.next();
                return first + " " + result.getBigDecimal(1);
            }
        });
        Calendar utc = Calendar.getInstance(TimeZone.getTimeZone("UTC"));
        readFirst(connection, "bytes", "payload", result -> result.getBytes(1).length);
        readFirst(connection, "dates", "day", result -> result.getDate(1));
        readFirst(connection, "timestamps as local ones", "at", result -> result.getObject(1, LocalDateTime.class));
        readFirst(connection, "timestamps without a zone", "at", result -> result.getTimestamp(1));
        readFirst(connection, "timestamps without a zone, of UTC", "at", result -> result.getTimestamp(1, utc));
        readFirst(connection, "times", "time", result -> result.getTime(1));
        readFirst(connection, "timestamps with a zone", "zoned", result -> result.getObject(1, Instant.class));
        readFirst(connection, "timestamps with a zone as objects", "zoned", result -> result.getObject(1));
        readFirst(connection, "lists", "tags", result -> Arrays.toString((Object[]) result.getArray(1).getArray()));
        readFirst(connection, "vectors", "vector", result -> Arrays.toString((Object[]) result.getArray(1).getArray()));
        readFirst(connection, "structs", "place", result -> result.getString(1));
        readFirst(connection, "structs as java.sql.Struct", "place", result -> result.getObject(1, Struct.class));
        readFirst(connection, "vectors of half floats", "half", result -> result.getString(1));
        readFirst(connection, "dictionaries", "kind", result -> result.getString(1));
        for (String[] each : new String[][] {
            {"fields of structs and lists", "place['b'], tags[1], vector[1]"},
            {"vectors of half floats, cast", "arrow_cast(half, 'FixedSizeList(2, Float32)')"},
            {"dictionaries, cast", "CAST(kind AS VARCHAR)"},
            {"a cast to text", "CAST(price AS VARCHAR)"},
        }) {
            print(each[0], () -> {
                try (Statement statement = connection.createStatement()) {
                    return rows(statement.executeQuery("SELECT " + each[1] + " FROM types WHERE id = 1"));
                }
            });
        }
    }

    private static void readFirst(Connection connection, String name, String column, ReadRow read) {
        print(name, () -> {
            try (Statement statement = connection.createStatement();
                    ResultSet result = statement.executeQuery("SELECT " + column + " FROM types WHERE id = 1")) {
                result.next();
                return read.of(result);
            }
        });
    }

    private static void bindParameters(Connection connection) throws Exception {
        Timestamp noon = Timestamp.from(Instant.parse("2024-02-29T12:00:00.250Z"));
        for (Object[] each : new Object[][] {
            {"decimal", "price = ?", new BigDecimal("1.10")},
            {"date", "day = ?", Date.valueOf("2024-02-29")},
            {"timestamp", "at = ?", Timestamp.valueOf("2024-02-29 12:00:00.250")},
            {"timestamp with a zone", "zoned = ?", noon},
            {"bytes", "payload = ?", new byte[] {'a', 'b'}},
            {"cast to a timestamp", "at = CAST(? AS TIMESTAMP)", Timestamp.valueOf("2024-02-29 12:00:00.250")},
            {"array", "id = ANY(?)", connection.createArrayOf("BIGINT", new Object[] {1L, 2L})},
            {"java.time", "day = ?", LocalDate.of(2024, 2, 29)},
        }) {
            bind(connection, "parameter: " + each[0], "SELECT id FROM types WHERE " + each[1], each[2]);
        }
        bind(connection, "parameter: cast to text", "SELECT CAST(? AS VARCHAR)", "x");
        bind(connection, "parameter: cast to a decimal", "SELECT CAST(? AS DECIMAL(10, 2))", new BigDecimal("1.10"));
    }

    private static void bind(Connection connection, String name, String query, Object value) {
        print(name, () -> {
            try (PreparedStatement statement = connection.prepareStatement(query)) {
                statement.setObject(1, value);
                return rows(statement.executeQuery());
            }
        });
    }

    private static void changeViews(Connection connection) throws Exception {
        try (Statement statement = connection.createStatement()) {
            print("create view", () -> rows(statement.executeQuery("CREATE MATERIALIZED VIEW v AS SELECT id FROM films")));
            print("refresh view", () -> statement.executeUpdate("REFRESH MATERIALIZED VIEW v"));
            print("views", () -> rows(statement.executeQuery("SHOW MATERIALIZED VIEWS")));
            print("drop view", () -> statement.execute("DROP MATERIALIZED VIEW v"));
            print("views at last", () -> rows(statement.executeQuery("SHOW MATERIALIZED VIEWS")));
        }
    }

    private static void describe(DatabaseMetaData about) throws Exception {
        print("product", () -> about.getDatabaseProductName());
        print("read only", () -> about.isReadOnly());
        print("catalogs", () -> rows(about.getCatalogs()));
        print("schemas", () -> columns(about.getSchemas(), "TABLE_SCHEM"));
        print("tables", () -> columns(about.getTables(null, null, "%", null), "TABLE_SCHEM", "TABLE_NAME", "TABLE_TYPE"));
        print("tables of a schema", () -> columns(about.getTables(null, "sales", "%", new String[] {"BASE TABLE"}), "TABLE_NAME"));
        print("columns", () -> columns(about.getColumns(null, "public", "films", "%"), "COLUMN_NAME", "TYPE_NAME", "DATA_TYPE"));
        print("precision of a decimal", () -> columns(about.getColumns(null, "public", "types", "price"), "COLUMN_NAME", "TYPE_NAME", "COLUMN_SIZE", "DECIMAL_DIGITS"));
        print("table types", () -> rows(about.getTableTypes()));
        print("type info", () -> rows(about.getTypeInfo()));
        print("primary keys", () -> rows(about.getPrimaryKeys(null, "public", "films")));
        print("imported keys", () -> rows(about.getImportedKeys(null, "public", "films")));
        print("exported keys", () -> rows(about.getExportedKeys(null, "public", "films")));
        print("cross reference", () -> rows(about.getCrossReference(null, "public", "films", null, "sales", "ratings")));
        List<String> failed = new ArrayList<>();
        for (Method method : DatabaseMetaData.class.getMethods()) {
            if (method.getParameterCount() == 0 && method.getDeclaringClass() == DatabaseMetaData.class) {
                try {
                    Object answer = method.invoke(about);
                    if (answer instanceof ResultSet) {
                        rows((ResultSet) answer);
                    }
                } catch (InvocationTargetException error) {
                    failed.add(method.getName() + "(" + error.getCause() + ")");
                }
            }
        }
        print("failed questions", () -> failed);
    }

    private static void fail(Connection connection) throws Exception {
        try (Statement statement = connection.createStatement()) {
            print("missing table", () -> rows(statement.executeQuery("SELECT * FROM nothing")));
            print("syntax", () -> rows(statement.executeQuery("SELEC 1")));
            print("division", () -> rows(statement.executeQuery("SELECT id / 0 FROM films")));
            print("change", () -> statement.executeUpdate("DROP TABLE films"));
            print("insert", () -> statement.executeUpdate("INSERT INTO films VALUES (7)"));
            print("BEGIN", () -> statement.execute("BEGIN"));
            print("batch", () -> {
                statement.addBatch("INSERT INTO films VALUES (7)");
                return statement.executeBatch();
            });
        }
        print("prepared insert", () -> connection.prepareStatement("INSERT INTO films VALUES (?)"));
        print("autocommit", () -> {
            connection.setAutoCommit(false);
            connection.commit();
            connection.rollback();
            connection.setAutoCommit(true);
            return connection.getAutoCommit();
        });
    }

    private static void stop(Connection connection) throws Exception {
        String endless = "SELECT a.text, b.text AS other FROM numbers a JOIN numbers b ON a.n % 7 = b.n % 7";
        print("most rows", () -> {
            try (Statement statement = connection.createStatement()) {
                statement.setMaxRows(2);
                return rows(statement.executeQuery("SELECT id FROM films")).size();
            }
        });
        print("time limit", () -> {
            try (Statement statement = connection.createStatement()) {
                statement.setQueryTimeout(1);
                return rows(statement.executeQuery("SELECT count(*) FROM (" + endless + ") WHERE text <> other"));
            }
        });
        print("cancel while rows are read", () -> {
            try (Statement statement = connection.createStatement()) {
                ResultSet result = statement.executeQuery(endless);
                result.next();
                statement.cancel();
                while (result.next()) {
                    // until the driver says that it is cancelled
                }
                return "read to the end";
            }
        });
        print("leave rows unread", () -> {
            try (Statement statement = connection.createStatement()) {
                ResultSet result = statement.executeQuery(endless);
                result.next();
                result.close();
                return "closed";
            }
        });
    }

    private static List<List<String>> rows(ResultSet result) throws SQLException {
        List<List<String>> rows = new ArrayList<>();
        try (ResultSet open = result) {
            int width = open.getMetaData().getColumnCount();
            while (open.next()) {
                List<String> row = new ArrayList<>();
                for (int at = 1; at <= width; at++) {
                    row.add(open.getString(at));
                }
                rows.add(row);
            }
        }
        return rows;
    }

    private static List<String> columns(ResultSet result, String... names) throws SQLException {
        List<String> rows = new ArrayList<>();
        try (ResultSet open = result) {
            while (open.next()) {
                List<String> row = new ArrayList<>();
                for (String name : names) {
                    row.add(open.getString(name));
                }
                rows.add(String.join(" ", row));
            }
        }
        return rows;
    }

    private static void print(String name, Read read) {
        String text;
        try {
            text = String.valueOf(read.run());
        } catch (Throwable error) {
            text = "error: " + error.getMessage();
        }
        System.out.println(name + "\t" + text.replace('\n', ' '));
    }
}
