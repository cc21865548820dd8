// Reads a server by the JDBC driver of Arrow Flight SQL: java -cp DRIVER JdbcProgram.java URL KEY
// Prints a line for each thing it has read: its name, a tab, and the values.

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.sql.Connection;
import java.sql.DatabaseMetaData;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;

public class JdbcProgram {
    private interface Read {
        Object run() throws Exception;
    }

    public static void main(String[] arguments) throws Exception {
        String url = arguments[0], key = arguments[1];
        connectByEachCredential(url, key);
        Properties properties = new Properties();
        properties.put("x-api-key", key);
        try (Connection connection = DriverManager.getConnection(url, properties)) {
            query(connection);
            describe(connection.getMetaData());
            fail(connection);
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

    private static void describe(DatabaseMetaData about) throws Exception {
        print("product", () -> about.getDatabaseProductName());
        print("read only", () -> about.isReadOnly());
        print("catalogs", () -> rows(about.getCatalogs()));
        print("schemas", () -> columns(about.getSchemas(), "TABLE_SCHEM"));
        print("tables", () -> columns(about.getTables(null, null, "%", null), "TABLE_SCHEM", "TABLE_NAME", "TABLE_TYPE"));
        print("tables of a schema", () -> columns(about.getTables(null, "sales", "%", new String[] {"BASE TABLE"}), "TABLE_NAME"));
        print("columns", () -> columns(about.getColumns(null, "public", "films", "%"), "COLUMN_NAME", "TYPE_NAME", "DATA_TYPE"));
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
        }
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
