// Runs one query by the JDBC driver of Arrow Flight SQL: java -cp DRIVER QueryProgram.java URL USER PASSWORD QUERY
// Prints the first column, a value a line; an error is printed with its causes, and ends with status 1.

import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;

public class QueryProgram {
    public static void main(String[] arguments) {
        try (Connection connection = DriverManager.getConnection(arguments[0], arguments[1], arguments[2]);
                Statement statement = connection.createStatement();
                ResultSet result = statement.executeQuery(arguments[3])) {
            while (result.next()) {
                System.out.println(result.getString(1));
            }
        } catch (SQLException error) {
            for (Throwable cause = error; cause != null; cause = cause.getCause()) {
                System.err.println(cause.getMessage());
            }
            System.exit(1);
        }
    }
}
